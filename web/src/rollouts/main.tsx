import { render } from 'preact';
import { startTheme } from '../shell/theme';
import '../styles/base.css';
import '../styles/controls.css';
import './rollouts.css';
import { RolloutsApp } from './rollouts_app';

startTheme();
const place = document.getElementById('app');
if (place) {
  place.replaceChildren();
  render(<RolloutsApp />, place);
}
